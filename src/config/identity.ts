import { resolve } from 'node:path';
import { fetchableUrl } from './fetchable.ts';
import { type ConfigRow, type Key, TABLE } from './table.ts';
import type { Values } from './values.ts';

/** Credentials that the server accepts besides API keys. */
export interface IdentityConfig {
  /** Undefined: no tokens. */
  readonly jwt: JwtConfig | undefined;
  /** Whether clients are asked for certificates. */
  readonly clientCertificates: boolean;
  /** Absolute path of the file that gives their subjects roles. */
  readonly mappingFile: string;
}

export interface JwtConfig {
  readonly issuer: string;
  readonly audience: string;
  /** The absolute path of a file, or a URL. Undefined: the issuer tells. */
  readonly keys: { readonly file: string } | { readonly url: string } | undefined;
  /** Absolute paths. */
  readonly caFile: string | undefined;
  readonly tokenFile: string | undefined;
}

/** Settings that make no sense without an issuer. */
const OF_ISSUER = ['jwtJwks', 'jwtAudience', 'jwtCa', 'jwtTokenFile'] as const satisfies readonly Key[];
/** Settings that make no sense without a fetch. */
const OF_FETCH = ['jwtCa', 'jwtTokenFile'] as const satisfies readonly Key[];
/** Settings that accept a kind of credential. */
const KINDS = ['jwtIssuer', 'clientCa'] as const satisfies readonly Key[];

/** Undefined: only API keys are accepted. Errors: ConfigError. */
export function parseIdentity(values: Values, cwd: string): IdentityConfig | undefined {
  if (KINDS.every((key) => values.text(key) === '')) return undefined;
  const mappingFile = resolve(cwd, values.text('principals'));
  return { jwt: parseJwt(values, cwd), clientCertificates: values.text('clientCa') !== '', mappingFile };
}

/** Says of settings that exclude or need each other which these are, each with what to do: all that there are. */
export function identityContradictions(values: Values, authenticated: boolean): string[] {
  const isGiven = (key: Key) => !['', (TABLE[key] as ConfigRow).default].includes(values.text(key));
  const faults: string[] = [];
  const kinds = KINDS.filter(isGiven);
  for (const key of kinds) {
    const name = values.nameOf(key);
    if (!authenticated) {
      faults.push(`${name} is set, but callers need no credential here: add --auth required, or leave it out.`);
    }
    if (!isGiven('principals')) {
      faults.push(`${name} is set, but nobody has a role by it: add --principals FILE.`);
    }
  }
  if (kinds.length === 0 && isGiven('principals')) {
    faults.push(
      `${values.nameOf('principals')} is set without --jwt-issuer and --client-ca: add one of them, or leave it out.`,
    );
  }
  if (isGiven('clientCa') && !isGiven('tlsCert')) {
    faults.push(`${values.nameOf('clientCa')} needs TLS: add --tls-cert FILE and --tls-key FILE.`);
  }
  if (!isGiven('jwtIssuer')) {
    for (const key of OF_ISSUER.filter(isGiven)) {
      faults.push(`${values.nameOf(key)} is set without --jwt-issuer: add it, or leave ${values.flagOf(key)} out.`);
    }
  } else if (isGiven('jwtJwks') && !isUrl(values.text('jwtJwks'))) {
    for (const key of OF_FETCH.filter(isGiven)) {
      faults.push(
        `${values.nameOf(key)} is set, but ${values.nameOf('jwtJwks')} is a file, which is not fetched: leave one of them out.`,
      );
    }
  }
  return faults;
}

function parseJwt(values: Values, cwd: string): JwtConfig | undefined {
  const issuer = values.text('jwtIssuer').trim();
  if (issuer === '') return undefined;
  const keys = parseKeys(values, cwd);
  if (keys === undefined && fetchableUrl(issuer) === undefined) throw values.error('jwtIssuer');
  const audience = values.text('jwtAudience').trim();
  if (audience === '') throw values.error('jwtAudience');
  const [caFile, tokenFile] = OF_FETCH.map((key) =>
    values.text(key) === '' ? undefined : resolve(cwd, values.text(key)),
  );
  return { issuer, audience, keys, caFile, tokenFile };
}

function parseKeys(values: Values, cwd: string): JwtConfig['keys'] {
  const text = values.text('jwtJwks').trim();
  if (text === '') return undefined;
  if (!isUrl(text)) return { file: resolve(cwd, text) };
  if (fetchableUrl(text) === undefined) throw values.error('jwtJwks');
  return { url: text };
}

function isUrl(text: string): boolean {
  return text.includes('://');
}
