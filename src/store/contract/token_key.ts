/** Secrets that seal page and resume tokens (RD12). They belong to the installation and not to a namespace. */
export interface TokenKeyStore {
  /** Returns all secrets, the newest first. A database has one from its creation on. */
  listTokenSecrets(): Promise<Uint8Array[]>;
}
