"""Tools for operators and authors: checks, drafts, explanations, policies, replays."""
