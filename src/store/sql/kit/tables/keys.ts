import { bytes, int, nullable, table, text, time, uuid } from './table.ts';

/** API keys. They belong to the installation, so they have no namespace of their own. */
export const API_KEYS = table('api_keys', {
  id: uuid,
  /** Name of the principal. */
  name: text,
  role: text,
  /** JSON text: a list of namespaces, or of `*`. */
  namespaces: text,
  /** SHA-256 of the secret. */
  digest: bytes,
  create_time: time,
  expire_time: nullable(time),
  revoke_time: nullable(time),
});

/** Secrets that seal page and resume tokens of the installation. The newest one seals, and all of them open. */
export const TOKEN_KEYS = table('token_keys', {
  number: int,
  secret: bytes,
});
