/** An identity provider: signs tokens of any kind, made without a library, and serves its keys as a test wants it. */
import { constants, createHmac, generateKeyPairSync, type KeyObject, randomUUID, sign } from 'node:crypto';
import http from 'node:http';
import https from 'node:https';
import type { AddressInfo } from 'node:net';
import { createAuthority, type Issued } from './certificates.ts';

export type Claims = Readonly<Record<string, unknown>>;

/** A key pair that signs by one algorithm. */
export interface SigningKey {
  readonly kid: string;
  readonly alg: string;
  readonly publicKey: KeyObject;
  /** For the set of keys of an issuer. */
  readonly jwk: Claims;
  sign(text: string): Buffer;
}

const CURVES: Readonly<Record<string, string>> = { ES256: 'P-256', ES384: 'P-384', ES512: 'P-521' };

export function newSigningKey(alg = 'ES256', kid: string = randomUUID()): SigningKey {
  const { publicKey, privateKey } = pairOf(alg);
  const hash = alg === 'EdDSA' ? null : `sha${alg.slice(2)}`;
  const options = {
    dsaEncoding: 'ieee-p1363',
    ...(alg.startsWith('PS') && { padding: constants.RSA_PKCS1_PSS_PADDING, saltLength: Number(alg.slice(2)) / 8 }),
  } as const;
  return {
    kid,
    alg,
    publicKey,
    jwk: { ...publicKey.export({ format: 'jwk' }), kid, alg, use: 'sig' },
    sign: (text) => sign(hash, Buffer.from(text), { key: privateKey, ...options }),
  };
}

function pairOf(alg: string): { readonly publicKey: KeyObject; readonly privateKey: KeyObject } {
  if (alg === 'EdDSA') return generateKeyPairSync('ed25519');
  if (alg.startsWith('ES')) return generateKeyPairSync('ec', { namedCurve: CURVES[alg] ?? '' });
  return generateKeyPairSync('rsa', { modulusLength: 2048 });
}

/** Returns a token. `signed` replaces the signature of the key. */
export function tokenOf(
  key: SigningKey,
  claims: Claims,
  header: Claims = {},
  signed: (text: string) => Uint8Array = (text) => key.sign(text),
): string {
  const text = [{ alg: key.alg, kid: key.kid, ...header }, claims]
    .map((part) => Buffer.from(JSON.stringify(part)).toString('base64url'))
    .join('.');
  return `${text}.${Buffer.from(signed(text)).toString('base64url')}`;
}

/** A time in the seconds of a claim, from now. */
export function inSeconds(seconds: number): number {
  return Math.floor(Date.now() / 1000) + seconds;
}

/** The claims of a good token of an issuer. */
export function claimsOf(issuer: string, more: Claims = {}): Claims {
  return { iss: issuer, aud: 'anabranch', sub: 'agent', exp: inSeconds(3600), ...more };
}

/** Tokens that no server accepts, with what is said of them. */
export function badTokens(issuer: string, key: SigningKey): Readonly<Record<string, readonly [() => string, string]>> {
  const good = () => claimsOf(issuer);
  const { exp: _exp, ...endless } = good();
  const { sub: _sub, ...nameless } = good();
  const publicPem = key.publicKey.export({ type: 'spki', format: 'pem' });
  const hmac = (text: string) => createHmac('sha256', publicPem).update(text).digest();
  const other = newSigningKey(key.alg, key.kid);
  const foreign = newSigningKey();
  return {
    unsigned: [() => tokenOf(key, good(), { alg: 'none' }, () => Buffer.alloc(0)), 'algorithm'],
    'signed by HS256 with the public key': [() => tokenOf(key, good(), { alg: 'HS256' }, hmac), 'algorithm'],
    'of another issuer': [() => tokenOf(key, { ...good(), iss: 'https://other.example' }), 'issuer'],
    'for another audience': [() => tokenOf(key, { ...good(), aud: ['other'] }), 'audience'],
    'for no audience': [() => tokenOf(key, { ...good(), aud: undefined }), 'audience'],
    'of a key that is not known': [() => tokenOf(foreign, good()), 'key_unknown'],
    'signed by another key': [() => tokenOf(other, good()), 'signature'],
    'changed after it was signed': [() => tokenOf(key, good(), {}, () => key.sign('other')), 'signature'],
    'expired since 31 seconds': [() => tokenOf(key, { ...good(), exp: inSeconds(-31) }), 'expired'],
    'not valid before 40 seconds': [() => tokenOf(key, { ...good(), nbf: inSeconds(40) }), 'not_yet_valid'],
    'without exp': [() => tokenOf(key, endless), 'claims'],
    'with exp as text': [() => tokenOf(key, { ...good(), exp: '9999999999' }), 'claims'],
    'without sub': [() => tokenOf(key, nameless), 'claims'],
    'with a sub of control characters': [() => tokenOf(key, { ...good(), sub: 'a\u0000b' }), 'claims'],
    'with critical extensions': [() => tokenOf(key, good(), { crit: ['x'], x: 1 }), 'malformed'],
    'with its own key': [() => tokenOf(foreign, good(), { jwk: foreign.jwk, kid: undefined }), 'signature'],
    'of no JSON': [() => `${'a'.repeat(20)}.${'b'.repeat(20)}.${'c'.repeat(20)}`, 'malformed'],
  };
}

type Answer = (request: http.IncomingMessage, response: http.ServerResponse) => void;

/** An issuer on loopback, over TLS if it has a certificate. It answers as OpenID Connect Discovery says. */
export class TestIssuer {
  /** The headers of requests, by path. */
  readonly asked: { readonly path: string; readonly authorization: string | undefined }[] = [];
  keys: SigningKey[] = [newSigningKey()];
  /** Replaces the answer with the keys. */
  answer: Answer | undefined;
  /** Replaces the name of the issuer in its discovery. */
  named: string | undefined;
  readonly #server: http.Server | https.Server;
  readonly #scheme: string;

  private constructor(issued: Issued | undefined) {
    const serve: Answer = (request, response) => this.#serve(request, response);
    this.#scheme = issued === undefined ? 'http' : 'https';
    this.#server = issued === undefined ? http.createServer(serve) : https.createServer(issued, serve);
  }

  static async start(issued?: Issued): Promise<TestIssuer> {
    const issuer = new TestIssuer(issued);
    await new Promise<void>((resolve) => issuer.#server.listen(0, '127.0.0.1', resolve));
    return issuer;
  }

  get url(): string {
    return `${this.#scheme}://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** How often its keys were asked for. */
  get fetches(): number {
    return this.asked.filter(({ path }) => path === '/keys').length;
  }

  token(claims: Claims = {}, key = this.keys[0]!, header: Claims = {}): string {
    return tokenOf(key, claimsOf(this.url, claims), header);
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  #serve(request: http.IncomingMessage, response: http.ServerResponse): void {
    const path = request.url ?? '';
    this.asked.push({ path, authorization: request.headers.authorization });
    const json = (value: unknown) => void response.end(JSON.stringify(value));
    if (path === '/.well-known/openid-configuration') {
      json({ issuer: this.named ?? this.url, jwks_uri: `${this.url}/keys` });
    } else if (path !== '/keys') {
      response.writeHead(404).end();
    } else if (this.answer === undefined) json({ keys: this.keys.map(({ jwk }) => jwk) });
    else this.answer(request, response);
  }
}

/** An issuer over TLS, and the certificate of its authority. */
export async function startSecureIssuer(): Promise<{ readonly issuer: TestIssuer; readonly ca: string }> {
  const authority = createAuthority('Authority of an issuer');
  return { issuer: await TestIssuer.start(authority.issue()), ca: authority.cert };
}
