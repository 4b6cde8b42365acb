"""Items of realtime connections: their keys begin with `RT`, no stream filter or index has them."""
