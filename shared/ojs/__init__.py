"""Open Job Spec on AWS: the library that all functions import."""
