"""Access keys, and what a deployment notes about itself."""
