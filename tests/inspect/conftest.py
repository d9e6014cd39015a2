"""The browser, where Chromium is installed."""

from browser import browser

__all__ = ["browser"]
