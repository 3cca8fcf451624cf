import { readFile, writeFile } from 'node:fs/promises';
import { EVERY_NAMESPACE, isSecret, newSecret, secretDigest } from './domain/access.ts';
import { StartError } from './start_error.ts';
import type { KeyStore } from './store/contract/key.ts';

/**
 * Makes the key in the file valid with the role ADMIN, so that an installation has its first key. Creates the key and
 * the file if there is none; several instances may share it. Errors: StartError.
 */
export async function ensureAdminKey(
  store: Pick<KeyStore, 'findKey' | 'createKey'>,
  file: string,
  id: string,
): Promise<void> {
  const digest = secretDigest(await secretIn(file));
  const named = {
    id,
    name: 'admin',
    role: 'ADMIN',
    namespaces: [EVERY_NAMESPACE],
    digest,
    validMs: undefined,
  } as const;
  const found =
    (await store.findKey(digest)) ??
    (await store.createKey(named).catch(async (error: unknown) => {
      // Another instance has created it meanwhile.
      const other = await store.findKey(digest);
      if (other === undefined) throw error;
      return other;
    }));
  if (found.revokeTime !== undefined)
    throw new StartError(`The API key in ${file} was revoked: remove the file for a new one.`);
}

async function secretIn(file: string): Promise<string> {
  const secret = (await readSecret(file)) ?? (await writeSecret(file, newSecret()));
  if (secret === undefined || !isSecret(secret))
    throw new StartError(`${file} (--admin-key-file) has no API key of Anabranch: it begins with "anb_".`);
  return secret;
}

/** Undefined if there is no file. */
async function readSecret(file: string): Promise<string | undefined> {
  try {
    return (await readFile(file, 'utf8')).trim();
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw unusable(file, error);
  }
}

/** Returns what the file has: another instance may have created it meanwhile. */
async function writeSecret(file: string, secret: string): Promise<string | undefined> {
  try {
    await writeFile(file, `${secret}\n`, { flag: 'wx', mode: 0o600 });
    return secret;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return readSecret(file);
    throw unusable(file, error);
  }
}

function unusable(file: string, error: unknown): StartError {
  const { code = 'unknown error' } = error as NodeJS.ErrnoException;
  return new StartError(`${file} (--admin-key-file) cannot be read or created: ${code}.`);
}
