"""Tools for operators and authors: adopt, check, discover, draft, embed, explain, expose, iam, preview and verify."""
