import { hash } from 'node:crypto';
import { AnabranchError, invalidField } from './errors.ts';
import { beginning } from './text.ts';

/** SHA-256 as 64 lower-case hex characters (FM1). */
export type Digest = string;

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const DIGEST = /^[0-9a-f]{64}$/;
const TAG = /^[A-Za-z][A-Za-z0-9._/-]{0,127}$/;

/** Returns a UUID in lower case, its only stored form. Ids that differ only in case are the same id. */
export function parseUuid(text: string, field: string): string {
  if (!UUID.test(text))
    throw invalidField(field, `must be a UUID such as 0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6a, got "${shorten(text)}"`);
  return text.toLowerCase();
}

/** Returns the UUID, of version 8, that is derived from a text. */
export function derivedUuid(text: string): string {
  const digest = hash('sha256', text, 'hex');
  const parts = [digest.slice(0, 8), digest.slice(8, 12), `8${digest.slice(13, 16)}`, `8${digest.slice(17, 20)}`];
  return [...parts, digest.slice(20, 32)].join('-');
}

export function parseDigest(text: string, field: string): Digest {
  if (!DIGEST.test(text))
    throw invalidField(field, `must be a SHA-256 as 64 lower-case hex characters, got "${shorten(text)}"`);
  return text;
}

export function parseTagName(text: string, field: string): string {
  if (!TAG.test(text)) {
    throw invalidField(
      field,
      `must begin with a letter and contain only letters, digits and . _ - / (at most 128), got "${shorten(text)}"`,
    );
  }
  return text;
}

export function digestMismatch(expected: string, actual: Digest): AnabranchError {
  return new AnabranchError(
    'DIGEST_MISMATCH',
    `The bytes have the digest ${actual}, but the request has ${expected}: send the bytes again, or leave the digest unset.`,
    { metadata: { expected_digest: expected, digest: actual } },
  );
}

/** Shortens text from outside and removes control characters, so that a message can contain it. */
export function shorten(text: string, most = 80): string {
  const plain = text.replace(/[\p{Cc}\p{Cf}]/gu, '?');
  return plain.length > most ? `${beginning(plain, most - 3)}...` : plain;
}
