import { constants, createPrivateKey, X509Certificate } from 'node:crypto';
import tls from 'node:tls';
import { WatchedFiles } from '../watched_files.ts';

/** TLS 1.2 without renegotiation, which HTTP/2 forbids (RFC 9113, section 9.2.1), and 1.3, which has none. */
const MIN_VERSION = 'TLSv1.2';
const SECURE_OPTIONS = constants.SSL_OP_NO_RENEGOTIATION;

/** Files in PEM format: a certificate with the chain of its issuers, and its private key. */
export interface CertificateFiles {
  readonly certFile: string;
  readonly keyFile: string;
  /** Certificates of the authorities of client certificates. Undefined: clients are not asked for one. */
  readonly clientCaFile?: string | undefined;
}

/** What the log says about a certificate. */
export interface CertificateFacts {
  readonly subject: string;
  readonly names: string;
  readonly validUntil: string;
}

export interface CertificateEvents {
  /** Called for the first certificate, and for each that replaces it. `ca`: the authorities of client certificates. */
  use(context: tls.SecureContextOptions & { readonly ca: Buffer | undefined }, facts: CertificateFacts): void;
  /** Called once for files that cannot be used. The certificate before stays in use. */
  refuse(reason: string): void;
}

/**
 * The certificate of a port, and the authorities of its clients, from files that are watched. They are used only if all
 * are complete, match and are valid now.
 */
export function watchCertificate(files: CertificateFiles, everyMs: number, events: CertificateEvents): WatchedFiles {
  const { certFile, keyFile, clientCaFile } = files;
  const all = [certFile, keyFile, ...(clientCaFile === undefined ? [] : [clientCaFile])];
  return new WatchedFiles(all, everyMs, {
    use: ([cert = Buffer.alloc(0), key = Buffer.alloc(0), ca]) => {
      // A resumed session could pass for a client without a certificate of its own.
      const secureOptions = SECURE_OPTIONS | (ca === undefined ? 0 : constants.SSL_OP_NO_TICKET);
      const context = { cert, key, ca, minVersion: MIN_VERSION, secureOptions } as const;
      events.use(context, check(files, context));
    },
    refuse: (reason) => events.refuse(reason),
  });
}

function check(
  { certFile, keyFile, clientCaFile }: CertificateFiles,
  context: { readonly cert: Buffer; readonly key: Buffer; readonly ca: Buffer | undefined },
): CertificateFacts {
  const { cert, key, ca } = context;
  const certificate = parse(
    () => new X509Certificate(cert),
    () => `${certFile} holds no certificate in PEM format.`,
  );
  const privateKey = parse(
    () => createPrivateKey(key),
    () => `${keyFile} holds no private key in PEM format, or one that needs a passphrase.`,
  );
  if (!certificate.checkPrivateKey(privateKey)) throw new Error(`${keyFile} is not the key of ${certFile}.`);
  checkTime(certFile, certificate);
  if (clientCaFile !== undefined && ca !== undefined) checkAuthorities(clientCaFile, ca);
  // The rest of the chain, and what OpenSSL demands, such as the size of the key.
  parse(
    () => tls.createSecureContext(context),
    (reason) => `${certFile} and ${keyFile} cannot be used (${reason}).`,
  );
  return {
    subject: certificate.subject.replaceAll('\n', ', '),
    names: certificate.subjectAltName ?? '',
    validUntil: new Date(certificate.validTo).toISOString(),
  };
}

const PEM = /-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----/gu;

/** A bundle may have authorities that have expired, besides those that replace them. */
function checkAuthorities(file: string, pem: Buffer): void {
  const authorities = (pem.toString('latin1').match(PEM) ?? []).map((one, i) =>
    parse(
      () => new X509Certificate(one),
      () => `Certificate ${i + 1} of ${file} is damaged.`,
    ),
  );
  const [first] = authorities;
  if (first === undefined) throw new Error(`${file} holds no certificate in PEM format.`);
  if (authorities.every(({ validTo }) => new Date(validTo).getTime() < Date.now())) checkTime(file, first);
}

function checkTime(file: string, { validFrom, validTo }: X509Certificate): void {
  const [from, until] = [new Date(validFrom), new Date(validTo)];
  if (until.getTime() < Date.now()) throw new Error(`${file} has expired on ${until.toISOString()}.`);
  if (from.getTime() > Date.now()) throw new Error(`${file} is not valid before ${from.toISOString()}.`);
}

function parse<T>(make: () => T, fault: (reason: string) => string): T {
  try {
    return make();
  } catch (error) {
    throw new Error(fault((error as Error).message), { cause: error });
  }
}
