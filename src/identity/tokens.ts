import { decodeProtectedHeader, errors, type JWTPayload, jwtVerify } from 'jose';
import { type CredentialFault, unauthenticated } from '../domain/access.ts';
import type { AnabranchError } from '../domain/errors.ts';
import type { Proof, TokenVerifier } from '../domain/identity.ts';
import type { KeySource } from './key_source.ts';
import type { Mapping } from './mapping.ts';
import { isName, proofOf } from './proof.ts';

/** By public keys only. */
const ALGORITHMS = [
  ...['RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512'],
  ...['ES256', 'ES384', 'ES512', 'EdDSA', 'Ed25519'],
];
/** For clocks that differ, in seconds. */
const TOLERANCE = 30;
/** The end of the year 9999, in seconds. */
const LAST_SECOND = 253_402_300_799;

interface TokenOptions {
  readonly issuer: string;
  readonly audience: string;
  readonly keys: Pick<KeySource, 'current' | 'renew'>;
  readonly mapping: () => Mapping;
}

/** Verifies signed tokens (JWT) of one issuer. Nothing that a token names is fetched. */
export class Tokens implements TokenVerifier {
  readonly #options: TokenOptions;

  constructor(options: TokenOptions) {
    this.#options = options;
  }

  keysFor(token: string): Promise<void> | undefined {
    const { keys } = this.#options;
    const kid = keyIdOf(token);
    return keys.current?.textOf(kid) === undefined ? keys.renew() : undefined;
  }

  async verify(token: string): Promise<Proof> {
    const { issuer, audience, keys, mapping } = this.#options;
    const set = keys.current;
    if (set === undefined) throw unauthenticated('key_unknown');
    const required = { algorithms: ALGORITHMS, issuer, audience, requiredClaims: ['exp', 'sub'] };
    const { payload, protectedHeader } = await jwtVerify(token, set.choose, {
      ...required,
      clockTolerance: TOLERANCE,
    }).catch((error: unknown) => {
      throw refusal(error);
    });
    const { sub, exp } = subjectOf(payload);
    const { kid } = protectedHeader;
    const signed = set.textOf(kid);
    let seen: typeof set | undefined = set;
    const fault = () => {
      if (keys.current === seen) return undefined;
      if (keys.current?.textOf(kid) !== signed) return unauthenticated('key_unknown');
      seen = keys.current;
      return undefined;
    };
    const expireTime = BigInt(Math.floor(Math.min(exp + TOLERANCE, LAST_SECOND) * 1000)) * 1_000_000n;
    return proofOf({ subject: { sub, claims: payload }, name: `sub:${sub}`, expireTime, fault }, mapping);
  }
}

function keyIdOf(token: string): unknown {
  try {
    return decodeProtectedHeader(token).kid;
  } catch {
    throw unauthenticated('malformed');
  }
}

function subjectOf({ sub, exp }: JWTPayload): { readonly sub: string; readonly exp: number } {
  if (!isName(sub) || typeof exp !== 'number') throw unauthenticated('claims');
  return { sub, exp };
}

/** What claims prove when they are there and do not fit. */
const OF_CLAIM: Readonly<Record<string, CredentialFault>> = { iss: 'issuer', aud: 'audience', nbf: 'not_yet_valid' };

function refusal(error: unknown): AnabranchError {
  return unauthenticated(faultOf(error));
}

function faultOf(error: unknown): CredentialFault {
  if (error instanceof errors.JWTExpired) return 'expired';
  if (error instanceof errors.JWTClaimValidationFailed) return OF_CLAIM[error.claim] ?? 'claims';
  if (error instanceof errors.JWSSignatureVerificationFailed) return 'signature';
  if (error instanceof errors.JOSEAlgNotAllowed) return 'algorithm';
  if (error instanceof errors.JWKSNoMatchingKey || error instanceof errors.JWKSMultipleMatchingKeys)
    return 'key_unknown';
  return 'malformed';
}
