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
  const { cert, key } = given.cert === undefined && given.key === undefined ? certificateOf(env) : given;
  if ((cert === undefined) !== (key === undefined)) {
    throw new TypeError('cert and key belong together: expected both, or neither');
  }
  return {
    ...given,
    address: given.address ?? (env.ANABRANCH_ADDRESS || DEFAULT_ADDRESS),
    token: given.token ?? tokenOf(env),
    namespace: given.namespace ?? (env.ANABRANCH_NAMESPACE || undefined),
    ca: given.ca ?? readPem(env, 'ANABRANCH_CA_FILE'),
    cert,
    key,
  };
}

/** A token in a file can be renewed, as those that Kubernetes mounts. */
function tokenOf({ ANABRANCH_TOKEN: token, ANABRANCH_TOKEN_FILE: file }: Environment): ConnectOptions['token'] {
  if (token) return token;
  return file ? () => readFile(file, 'utf8') : undefined;
}

/** The certificate of the client and its key. */
function certificateOf(env: Environment): Pick<ConnectOptions, 'cert' | 'key'> {
  const [cert, key] = [readPem(env, 'ANABRANCH_CERT_FILE'), readPem(env, 'ANABRANCH_KEY_FILE')];
  if ((cert === undefined) !== (key === undefined)) {
    throw new TypeError('ANABRANCH_CERT_FILE and ANABRANCH_KEY_FILE belong together: expected both, or neither');
  }
  return { cert, key };
}

function readPem(env: Environment, name: string): string | undefined {
  const file = env[name];
  if (!file) return undefined;
  try {
    return readFileSync(file, 'utf8');
  } catch (error) {
    const { code = 'unknown error' } = error as NodeJS.ErrnoException;
    throw new TypeError(`${name} is ${JSON.stringify(file)}, which cannot be read: ${code}`);
  }
}
