"""What a step costs and where its time goes: read from compiled programs and from traces."""
