"""The package's version, for those who must not import all of it."""

VERSION = "0.1.0"
