import { createCipheriv, createDecipheriv, createHmac, createSecretKey, type KeyObject } from 'node:crypto';

const CIPHER = 'aes-256-gcm';
const NONCE_BYTES = 12;
const TAG_BYTES = 16;

/** A key of the installation for its tokens: one part encrypts, the other one chooses nonces. */
export interface TokenKey {
  readonly encryption: KeyObject;
  readonly nonces: KeyObject;
}

export function tokenKeyOf(secret: Uint8Array): TokenKey {
  const partFor = (use: string) => createSecretKey(createHmac('sha256', secret).update(use).digest());
  return { encryption: partFor('encryption'), nonces: partFor('nonces') };
}

/**
 * RD12: returns a token that hides the text and proves who made it. It opens only with the same key and binding. The
 * nonce is an HMAC of both, so instances that share a key need no counter to use each nonce for one text only.
 */
export function sealToken({ encryption, nonces }: TokenKey, text: string, binding: string): string {
  const hmac = createHmac('sha256', nonces).update(JSON.stringify([binding, text]));
  const nonce = hmac.digest().subarray(0, NONCE_BYTES);
  const cipher = createCipheriv(CIPHER, encryption, nonce).setAAD(Buffer.from(binding));
  return Buffer.concat([nonce, cipher.update(text), cipher.final(), cipher.getAuthTag()]).toString('base64url');
}

/** Returns the text of a token; undefined if none of the keys has sealed it with this binding. */
export function openToken(keys: readonly TokenKey[], token: string, binding: string): string | undefined {
  const sealed = Buffer.from(token, 'base64url');
  // Other texts can decode to the same bytes.
  if (sealed.length < NONCE_BYTES + TAG_BYTES || sealed.toString('base64url') !== token) return undefined;
  for (const key of keys) {
    const text = decrypt(key, sealed, binding);
    if (text !== undefined) return text;
  }
  return undefined;
}

function decrypt({ encryption }: TokenKey, sealed: Buffer, binding: string): string | undefined {
  const nonce = sealed.subarray(0, NONCE_BYTES);
  const decipher = createDecipheriv(CIPHER, encryption, nonce, { authTagLength: TAG_BYTES })
    .setAAD(Buffer.from(binding))
    .setAuthTag(sealed.subarray(-TAG_BYTES));
  const text = decipher.update(sealed.subarray(NONCE_BYTES, -TAG_BYTES), undefined, 'utf8');
  try {
    return text + decipher.final('utf8');
  } catch {
    return undefined; // the tag does not match
  }
}
