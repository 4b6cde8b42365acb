"""Open Job Spec on AWS primitives: the library every function imports."""
