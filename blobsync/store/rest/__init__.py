"""A client of the Blob service's REST interface: requests, signatures, responses and errors."""
