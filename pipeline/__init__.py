"""The core: graphs, plans, the Scheduler and what runs them. It knows no model and no file format."""
