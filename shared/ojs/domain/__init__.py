"""Pure rules: what a job is and what may happen to it. Knows neither AWS nor HTTP."""
