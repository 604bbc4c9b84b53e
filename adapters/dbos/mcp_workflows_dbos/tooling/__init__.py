"""What people run before and beside the service: checks, explanations, drafts."""
