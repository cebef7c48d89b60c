"""What runs and plans found, as tables, figures and a page; each row says whether it was measured or predicted."""
