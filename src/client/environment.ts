import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import type { ConnectOptions } from './options.ts';

export type Environment = Readonly<Record<string, string | undefined>>;

export const DEFAULT_ADDRESS = '127.0.0.1:50051';

/** Returns the options with what the environment says of those that are not given. Throws TypeError. */
export function withEnvironment(
  given: ConnectOptions,
  env: Environment,
): ConnectOptions & { readonly address: string } {
  const caFile = env.ANABRANCH_CA_FILE || undefined;
  return {
    ...given,
    address: given.address ?? (env.ANABRANCH_ADDRESS || DEFAULT_ADDRESS),
    token: given.token ?? tokenOf(env),
    namespace: given.namespace ?? (env.ANABRANCH_NAMESPACE || undefined),
    ca: given.ca ?? (caFile === undefined ? undefined : readCertificates(caFile)),
  };
}

/** A token in a file can be renewed, as those that Kubernetes mounts. */
function tokenOf({ ANABRANCH_TOKEN: token, ANABRANCH_TOKEN_FILE: file }: Environment): ConnectOptions['token'] {
  if (token) return token;
  return file ? () => readFile(file, 'utf8') : undefined;
}

function readCertificates(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch (error) {
    const { code = 'unknown error' } = error as NodeJS.ErrnoException;
    throw new TypeError(`ANABRANCH_CA_FILE is ${JSON.stringify(file)}, which cannot be read: ${code}`);
  }
}
