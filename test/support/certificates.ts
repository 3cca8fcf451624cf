/** X.509 certificates of any kind, made without a program: DER by hand, signed by Node. */
import { generateKeyPairSync, type KeyObject, randomBytes, sign, X509Certificate } from 'node:crypto';
import { mkdtempSync, writeFileSync } from 'node:fs';
import { isIP, isIPv4 } from 'node:net';
import os from 'node:os';
import path from 'node:path';

export interface CertificateOptions {
  readonly commonName?: string;
  /** Subject alternative names: hosts, addresses, and URIs with their scheme. Default: those of this machine. */
  readonly names?: readonly string[];
  /** Default: an hour ago, and in a day. */
  readonly from?: Date;
  readonly until?: Date;
}

/** A certificate with its private key, in PEM format. */
export interface Issued {
  readonly cert: string;
  readonly key: string;
}

/** The files of a certificate, by the settings of the server. */
export interface IssuedFiles {
  readonly tlsCert: string;
  readonly tlsKey: string;
}

export interface Authority {
  /** The certificate that clients trust, in PEM format. */
  readonly cert: string;
  issue(options?: CertificateOptions): Issued;
}

const HOUR = 3_600_000;

export function createAuthority(commonName = 'Authority of a test'): Authority {
  const keys = newKeys();
  const cert = certificate({ subject: commonName, publicKey: keys.publicKey, names: [], isAuthority: true });
  return {
    cert,
    issue: ({ commonName: subject = 'localhost', names = ['localhost', '127.0.0.1', '::1'], from, until } = {}) => {
      const own = newKeys();
      return {
        cert: certificate({ subject, publicKey: own.publicKey, names, from, until, isAuthority: false }),
        key: own.privateKey.export({ type: 'pkcs8', format: 'pem' }).toString(),
      };
    },
  };

  function certificate(wanted: {
    subject: string;
    publicKey: KeyObject;
    names: readonly string[];
    from?: Date | undefined;
    until?: Date | undefined;
    isAuthority: boolean;
  }): string {
    const { subject, publicKey, names, isAuthority } = wanted;
    const { from = new Date(Date.now() - HOUR), until = new Date(Date.now() + 24 * HOUR) } = wanted;
    const content = sequence(
      der(0xa0, integer(2)),
      der(0x02, Buffer.concat([Buffer.from([1]), randomBytes(15)])),
      ECDSA_SHA256,
      nameOf(commonName),
      sequence(time(from), time(until)),
      nameOf(subject),
      publicKey.export({ type: 'spki', format: 'der' }),
      der(0xa3, sequence(basicConstraints(isAuthority), ...(names.length === 0 ? [] : [alternativeNames(names)]))),
    );
    const signature = sign('sha256', content, keys.privateKey);
    const made = sequence(content, ECDSA_SHA256, der(0x03, Buffer.concat([Buffer.from([0]), signature])));
    return new X509Certificate(made).toString();
  }
}

/** Writes a certificate and its key into files of a new folder. */
export function writeIssued({ cert, key }: Issued): IssuedFiles {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'anabranch-tls-'));
  const files = { tlsCert: path.join(folder, 'tls.crt'), tlsKey: path.join(folder, 'tls.key') };
  writeFileSync(files.tlsCert, cert);
  writeFileSync(files.tlsKey, key);
  return files;
}

function newKeys() {
  return generateKeyPairSync('ec', { namedCurve: 'P-256' });
}

function der(tag: number, content: Uint8Array): Buffer {
  const { length } = content;
  const head = length < 128 ? [length] : length < 256 ? [0x81, length] : [0x82, length >> 8, length & 255];
  return Buffer.concat([Buffer.from([tag, ...head]), content]);
}

function sequence(...parts: readonly Uint8Array[]): Buffer {
  return der(0x30, Buffer.concat(parts));
}

function integer(value: number): Buffer {
  return der(0x02, Buffer.from([value]));
}

function oid(...bytes: readonly number[]): Buffer {
  return der(0x06, Buffer.from(bytes));
}

const ECDSA_SHA256 = sequence(oid(0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02));

function nameOf(commonName: string): Buffer {
  return sequence(der(0x31, sequence(oid(0x55, 0x04, 0x03), der(0x0c, Buffer.from(commonName)))));
}

/** GeneralizedTime, which has room for every year. */
function time(date: Date): Buffer {
  return der(0x18, Buffer.from(`${date.toISOString().replace(/[-T:]|\.\d+/gu, '')}`));
}

function basicConstraints(isAuthority: boolean): Buffer {
  const critical = der(0x01, Buffer.from([0xff]));
  return sequence(oid(0x55, 0x1d, 0x13), critical, der(0x04, sequence(...(isAuthority ? [critical] : []))));
}

function alternativeNames(names: readonly string[]): Buffer {
  return sequence(oid(0x55, 0x1d, 0x11), der(0x04, sequence(...names.map(alternativeName))));
}

function alternativeName(name: string): Buffer {
  if (isIPv4(name)) return der(0x87, Buffer.from(name.split('.').map(Number)));
  if (isIP(name) !== 0) return der(0x87, ipv6Bytes(name));
  return der(name.includes('://') ? 0x86 : 0x82, Buffer.from(name));
}

function ipv6Bytes(address: string): Buffer {
  const [head = '', tail = ''] = address.split('::');
  const groups = (text: string) => (text === '' ? [] : text.split(':').map((group) => Number.parseInt(group, 16)));
  const [first, last] = [groups(head), groups(tail)];
  const all = [...first, ...new Array<number>(8 - first.length - last.length).fill(0), ...last];
  return Buffer.from(all.flatMap((group) => [group >> 8, group & 255]));
}
