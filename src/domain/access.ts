import { hash, randomBytes } from 'node:crypto';
import { crc32 } from 'node:zlib';
import { AnabranchError, type Reason } from './errors.ts';
import type { Instant } from './instant.ts';

/** What a principal may do, in order: each role includes the ones before it (access.proto). */
export const ROLES = ['READ', 'WORK', 'WRITE', 'ADMIN'] as const;
export type Role = (typeof ROLES)[number];

export function includesRole(held: Role, needed: Role): boolean {
  return ROLES.indexOf(held) >= ROLES.indexOf(needed);
}

/** In place of namespaces: all of them, also those that do not exist yet. */
export const EVERY_NAMESPACE = '*';

/** Who calls, and what they may do (N2): by an API key, a token or a certificate. */
export interface Identity {
  /** Name of the principal. Several credentials can have one name: a rotation keeps its leases. */
  readonly name: string;
  readonly role: Role;
  /** Not empty. `*`: all. */
  readonly namespaces: readonly string[];
  /** Undefined: never. */
  readonly expireTime: Instant | undefined;
}

/** An API key, without its secret. */
export interface ApiKey extends Identity {
  readonly id: string;
  readonly createTime: Instant;
  readonly revokeTime: Instant | undefined;
}

/** Length of the random part: 32 bytes in base 62. */
const BODY_LENGTH = 43;
const CHECKSUM_LENGTH = 6;
const PREFIX = 'anb_';
const DIGITS = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
const SECRET = new RegExp(`^${PREFIX}[0-9A-Za-z]{${BODY_LENGTH + CHECKSUM_LENGTH}}$`);

/**
 * Returns a new secret: `anb_`, 32 random bytes and their checksum in base 62. Scanners for leaked secrets find it, and
 * mistyped ones are refused without a look into the database.
 */
export function newSecret(): string {
  const body = base62(BigInt(`0x${randomBytes(32).toString('hex')}`), BODY_LENGTH);
  return `${PREFIX}${body}${checksumOf(body)}`;
}

/** Whether a text can be the secret of an API key. */
export function isSecret(text: string): boolean {
  if (!SECRET.test(text)) return false;
  const end = PREFIX.length + BODY_LENGTH;
  return checksumOf(text.slice(PREFIX.length, end)) === text.slice(end);
}

/** What is stored of a secret. Secrets have 256 random bits, so a plain digest cannot be searched for. */
export function secretDigest(secret: string): Buffer {
  return hash('sha256', secret, 'buffer');
}

function checksumOf(body: string): string {
  return base62(BigInt(crc32(body)), CHECKSUM_LENGTH);
}

function base62(value: bigint, length: number): string {
  let text = '';
  for (let rest = value; rest > 0n; rest /= 62n) text = `${DIGITS[Number(rest % 62n)]}${text}`;
  return text.padStart(length, '0');
}

/** What may be wrong with a credential: a key, a token of an identity provider, or a client's certificate. */
const FAULTS = {
  missing:
    'The call has no credential: send the header "authorization: Bearer KEY". An operator creates keys with `anabranch keys create`.',
  malformed:
    'The header "authorization" is not "Bearer" and an API key or a token that this server accepts: check that it was copied whole.',
  unknown: 'The API key does not exist on this installation.',
  revoked: 'The API key was revoked: ask an operator for a new one.',
  expired: 'The credential has expired: use a new one, or ask an operator for it.',
  repeated: 'The call has more than one header "authorization": send one.',
  algorithm: 'The token is not signed, or by an algorithm other than RS, PS, ES and EdDSA.',
  key_unknown:
    'The server has no key of the issuer that the token names: the key was withdrawn, or the server cannot reach the issuer.',
  signature: 'The signature of the token does not match the key of the issuer.',
  issuer: 'The token is of another issuer than --jwt-issuer of the server.',
  audience: 'The token is for another audience than --jwt-audience of the server.',
  not_yet_valid: 'The token is not valid yet: check the clocks of its issuer and of the server.',
  claims: 'The token needs the claims "exp", a number, and "sub", 1 to 512 printable characters of ASCII.',
  changed: 'What the credential allows has changed meanwhile: call again.',
  untrusted: 'The certificate of the client is of no authority that this server trusts (--client-ca).',
  names: 'The certificate of the client needs exactly one URI, else exactly one DNS name, as subject alternative name.',
} as const;
export type CredentialFault = keyof typeof FAULTS;

/** The text says what is wrong with a credential, and never repeats any of it. */
export function unauthenticated(fault: CredentialFault): AnabranchError {
  return new AnabranchError('UNAUTHENTICATED', FAULTS[fault], { metadata: { fault } });
}

export function roleTooLow(needed: Role, held: Role): AnabranchError {
  return denied(`The call needs the role ${needed}, and the credential has ${held}.`, {
    needed_role: needed,
    role: held,
  });
}

/** Of a credential that is valid, and of nobody that an operator has given a role. */
export function withoutRole(): AnabranchError {
  return denied('The credential is valid, but the server gives its subject no role (--principals).', {});
}

export function namespaceDenied(namespace: string): AnabranchError {
  return denied(`The credential is not for the namespace "${namespace}".`, { namespace });
}

function denied(message: string, metadata: Readonly<Record<string, string>>): AnabranchError {
  const reason: Reason = 'PERMISSION_DENIED';
  return new AnabranchError(reason, `${message} Use another credential, or ask an operator.`, { metadata });
}
