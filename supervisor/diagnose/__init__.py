"""Opinions, pure: from what was seen to why an attempt ended. Reads nothing and asks no clock."""
