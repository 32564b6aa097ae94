"""The words of the project as frozen values; knows nothing of any other room."""
