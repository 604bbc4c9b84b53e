"""Parts to build adapters from; the receiver and the service never import them.

`functions` builds an adapter from plain functions. `definition`, `expressions` and `reply_reader` describe and read the
replies of a JSON API. `error_table` and `http_errors` translate foreign errors. `bulk_status`, `change_hints`,
`kept_definitions`, `threads` and `token_bucket` each hold one mechanism that several adapters share.
"""
