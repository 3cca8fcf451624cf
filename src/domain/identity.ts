import type { X509Certificate } from 'node:crypto';
import type { Identity } from './access.ts';
import type { AnabranchError } from './errors.ts';

/** An identity that was verified, and whether it still is what its credential proves. */
export interface Proof {
  readonly identity: Identity;
  /** Returns why the credential must be shown again, apart from its end. Undefined: it need not be. Never waits. */
  readonly fault: () => AnabranchError | undefined;
}

/** Verifies tokens of an identity provider. */
export interface TokenVerifier {
  /** Returns a promise if the key of the token may be new. It resolves when the token can be verified. */
  keysFor(token: string): Promise<void> | undefined;
  /** Errors: UNAUTHENTICATED, PERMISSION_DENIED. */
  verify(token: string): Promise<Proof>;
}

/** Most characters, all ASCII, of the subject of a token or a certificate. The longest of Kubernetes has 341. */
export const SUBJECT_LENGTH = 512;

/** The certificate that a client has shown in its TLS handshake. */
export interface ClientCertificate {
  readonly certificate: X509Certificate;
  /** Why the handshake does not prove that the client is the one that the certificate names. */
  readonly fault: 'expired' | 'untrusted' | undefined;
  /** The authorities that have verified it. `replaced` is set when others take their place. */
  readonly authorities: { readonly replaced: boolean };
}

/** Errors: UNAUTHENTICATED, PERMISSION_DENIED, SERVER_DRAINING (of a connection that must be opened again). */
export type CertificateVerifier = (shown: ClientCertificate) => Proof;

/** What a server accepts besides API keys. */
export interface Verifiers {
  readonly tokens?: TokenVerifier | undefined;
  readonly certificates?: CertificateVerifier | undefined;
}
