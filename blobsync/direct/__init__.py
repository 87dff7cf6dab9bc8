"""The engine that moves files in this process, a request at a time, over the REST client."""
