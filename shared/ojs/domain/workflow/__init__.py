"""Workflows: their requests, the graph of their steps, and how it advances (ADR 36). Pure.

    request   `parse`: a request of any dialect → the graph and the templates of its jobs
    places    dependencies, callbacks, and cycles of a request in the form of a graph
    graph     `Graph`: nodes, the `marks` of a finished node, and the `verdict` of a waiting node
    advance   `start`, `advance`, `cancel`, `retry`: from one `GraphState` to the next
    results   the results that a step receives, and the fields that contain them
    stored    stored form of graphs, templates, and states

A store can keep the whole state of a workflow and call `advance` for each job. It can also store
the marks of a node with many sources separately, and call `advance` when all of them exist. Both
ways give the same result.
"""
