import type { ApiKey } from '../../domain/access.ts';
import type { Page } from './request.ts';

/** API keys, which belong to the installation and not to a namespace. */
export interface KeyStore {
  createKey(key: NewApiKey): Promise<ApiKey>;
  /** Lists keys by id, the oldest first, also those that were revoked. The cursor is the last id. */
  listKeys(page: Page<string>): Promise<ApiKey[]>;
  /** Returns the key with the time when it was first revoked. Errors: API_KEY_NOT_FOUND. */
  revokeKey(id: string): Promise<ApiKey>;
  /** Returns the key with this digest of its secret, also one that was revoked. */
  findKey(digest: Uint8Array): Promise<ApiKey | undefined>;
  /** Returns those of these keys that exist and were not revoked. */
  findValidKeys(ids: readonly string[]): Promise<ReadonlySet<string>>;
}

export interface NewApiKey extends Pick<ApiKey, 'id' | 'name' | 'role' | 'namespaces'> {
  /** Digest of the secret. */
  readonly digest: Uint8Array;
  /** How long it is valid, in milliseconds. Undefined: without end. */
  readonly validMs: bigint | undefined;
}
