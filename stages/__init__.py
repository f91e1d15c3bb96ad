"""The stages that come with Ridgeway; one line each in `STAGES`."""
