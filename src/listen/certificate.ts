import { constants, createHash, createPrivateKey, X509Certificate } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import tls from 'node:tls';

/** TLS 1.2 without renegotiation, which HTTP/2 forbids (RFC 9113, section 9.2.1), and 1.3, which has none. */
const VERSIONS = { minVersion: 'TLSv1.2', secureOptions: constants.SSL_OP_NO_RENEGOTIATION } as const;

/** Files in PEM format: a certificate with the chain of its issuers, and its private key. */
export interface CertificateFiles {
  readonly certFile: string;
  readonly keyFile: string;
}

/** What the log says about a certificate. */
export interface CertificateFacts {
  readonly subject: string;
  readonly names: string;
  readonly validUntil: string;
}

export interface CertificateEvents {
  /** Called for the first certificate, and for each that replaces it. */
  use(context: tls.SecureContextOptions, facts: CertificateFacts): void;
  /** Called once for files that cannot be used. The certificate before stays in use. */
  refuse(reason: string): void;
}

/**
 * The certificate of a port. Its files are read again every `everyMs`, because mounted secrets are replaced by changing
 * links above them. A pair is used only if it is complete, matches and is valid now.
 */
export class Certificate {
  readonly #files: CertificateFiles;
  readonly #everyMs: number;
  readonly #events: CertificateEvents;
  #used: string | undefined;
  /** Why the files could not be used at the last look, and whether this was reported. */
  #fault: string | undefined;
  #reported = false;
  #timer: NodeJS.Timeout | undefined;
  #stopped = false;

  constructor(files: CertificateFiles, everyMs: number, events: CertificateEvents) {
    this.#files = files;
    this.#everyMs = everyMs;
    this.#events = events;
  }

  /** Reads the files, and watches them from then on. Throws an error that says what is wrong with them. */
  async open(): Promise<void> {
    await this.#load();
    this.#schedule();
  }

  stop(): void {
    this.#stopped = true;
    clearTimeout(this.#timer);
  }

  #schedule(): void {
    if (this.#stopped) return;
    this.#timer = setTimeout(() => void this.#look().then(() => this.#schedule()), this.#everyMs).unref();
  }

  async #look(): Promise<void> {
    try {
      await this.#load();
      this.#fault = undefined;
    } catch (error) {
      const { message } = error as Error;
      // Two files are not replaced at once: only what is wrong twice in a row is reported.
      if (message !== this.#fault) this.#reported = false;
      else if (!this.#reported) {
        this.#reported = true;
        this.#events.refuse(message);
      }
      this.#fault = message;
    }
  }

  async #load(): Promise<void> {
    const [cert, key] = await Promise.all([read(this.#files.certFile), read(this.#files.keyFile)]);
    const digest = createHash('sha256').update(cert).update('\0').update(key).digest('base64');
    if (this.#stopped || digest === this.#used) return;
    const context = { cert, key, ...VERSIONS };
    this.#events.use(context, check(this.#files, context));
    this.#used = digest;
  }
}

async function read(file: string): Promise<Buffer> {
  try {
    return await readFile(file);
  } catch (error) {
    throw new Error(`${file} cannot be read (${(error as NodeJS.ErrnoException).code}).`, { cause: error });
  }
}

function check(
  { certFile, keyFile }: CertificateFiles,
  context: { readonly cert: Buffer; readonly key: Buffer },
): CertificateFacts {
  const { cert, key } = context;
  const certificate = parse(
    () => new X509Certificate(cert),
    () => `${certFile} holds no certificate in PEM format.`,
  );
  const privateKey = parse(
    () => createPrivateKey(key),
    () => `${keyFile} holds no private key in PEM format, or one that needs a passphrase.`,
  );
  if (!certificate.checkPrivateKey(privateKey)) throw new Error(`${keyFile} is not the key of ${certFile}.`);
  const [from, until] = [new Date(certificate.validFrom), new Date(certificate.validTo)];
  if (until.getTime() < Date.now()) throw new Error(`${certFile} has expired on ${until.toISOString()}.`);
  if (from.getTime() > Date.now()) throw new Error(`${certFile} is not valid before ${from.toISOString()}.`);
  // The rest of the chain, and what OpenSSL demands, such as the size of the key.
  parse(
    () => tls.createSecureContext(context),
    (reason) => `${certFile} and ${keyFile} cannot be used (${reason}).`,
  );
  return {
    subject: certificate.subject.replaceAll('\n', ', '),
    names: certificate.subjectAltName ?? '',
    validUntil: until.toISOString(),
  };
}

function parse<T>(make: () => T, fault: (reason: string) => string): T {
  try {
    return make();
  } catch (error) {
    throw new Error(fault((error as Error).message), { cause: error });
  }
}
