"""The Blob service's REST interface on urllib3: requests, signatures, answers and their errors."""
