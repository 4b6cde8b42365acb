"""Workflows: their requests, the graph of their steps, and how it advances (ADR 36). Pure.

    request   `parse`: a request of any dialect → the graph, and the templates of its jobs
    places    dependencies, callbacks and cycles of a request in the form of a graph
    graph     `Graph`: nodes; `marks` that the end of one makes, the `verdict` when all are there
    advance   `start`, `advance`, `cancel`, `retry`: from one `GraphState` to the next
    results   which results a step wants, and the fields that tell it of them
    stored    texts of graphs, templates and states

Whoever stores a workflow may keep its whole state and call `advance`, or keep the marks of a node
with many sources by themselves and tell `advance` of its end. Both come to the same.
"""
