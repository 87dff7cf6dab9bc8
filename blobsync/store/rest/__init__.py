"""The Blob service's REST interface: requests, signatures, answers and their errors."""
