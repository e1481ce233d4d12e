"""What a report says, once for the document and the page, and the document."""
