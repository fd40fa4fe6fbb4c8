"""The system under test: started, really ready or explained, and gone afterwards."""
