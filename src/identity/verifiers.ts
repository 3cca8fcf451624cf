import type { IdentityConfig, JwtConfig } from '../config/identity.ts';
import type { Verifiers } from '../domain/identity.ts';
import { certificateVerifier } from './certificates.ts';
import { IssuerKeys, type KeyTimes } from './issuer_keys.ts';
import { KeyFile } from './key_file.ts';
import type { KeySource, KeySourceEvents } from './key_source.ts';
import { type MappingEvents, MappingFile } from './mapping_file.ts';
import { Tokens } from './tokens.ts';

export interface IdentityTimes extends KeyTimes {
  /** Time between two looks at files. */
  readonly watchMs: number;
}

const TIMES: IdentityTimes = {
  watchMs: 5000,
  renewMs: 5 * 60_000,
  unknownKeyMs: 60_000,
  trustMs: 24 * 3_600_000,
  fetchMs: 10_000,
};

export interface IdentityEvents {
  readonly mapping: MappingEvents;
  readonly keys: KeySourceEvents;
}

export interface OpenVerifiers extends Verifiers {
  /** Rereads the files now. Never rejects. */
  reload(): Promise<void>;
  stop(): void;
}

/** Reads the files and fetches the keys of the issuer, and watches both. Throws an error that says what is wrong. */
export async function openVerifiers(
  { jwt, clientCertificates, mappingFile }: IdentityConfig,
  events: IdentityEvents,
  given: Partial<IdentityTimes> = {},
): Promise<OpenVerifiers> {
  const times = { ...TIMES, ...given };
  const mapping = new MappingFile(mappingFile, times.watchMs, events.mapping);
  const keys = jwt && keySourceOf(jwt, times, events.keys);
  const stop = () => {
    mapping.stop();
    keys?.stop();
  };
  try {
    await mapping.open();
    await keys?.open();
  } catch (error) {
    stop();
    throw error;
  }
  const current = () => mapping.current;
  return {
    tokens: jwt && keys && new Tokens({ issuer: jwt.issuer, audience: jwt.audience, keys, mapping: current }),
    certificates: clientCertificates ? certificateVerifier(current) : undefined,
    reload: async () => {
      await Promise.all([mapping.reload(), keys?.reload?.()]);
    },
    stop,
  };
}

function keySourceOf(
  { issuer, keys, caFile, tokenFile }: JwtConfig,
  times: IdentityTimes,
  events: KeySourceEvents,
): KeySource {
  if (keys !== undefined && 'file' in keys) return new KeyFile(keys.file, times.watchMs, events);
  const url = keys === undefined ? undefined : new URL(keys.url);
  return new IssuerKeys({ issuer, url, caFile, tokenFile }, times, events);
}
