"""What operators use: statistics, events, access keys, setup of a deployment, tidying up."""
