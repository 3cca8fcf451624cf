import { unauthenticated } from '../domain/access.ts';
import { AnabranchError } from '../domain/errors.ts';
import type { CertificateVerifier } from '../domain/identity.ts';
import type { Mapping } from './mapping.ts';
import { isName, proofOf } from './proof.ts';

/** Verifies certificates of clients: each names one workload, and the mapping gives it its role. */
export function certificateVerifier(mapping: () => Mapping): CertificateVerifier {
  return ({ certificate, authorities }) => {
    const fault = () => (authorities.replaced ? replaced() : undefined);
    const own = fault();
    if (own !== undefined) throw own;
    const san = workloadOf(certificate.subjectAltName ?? '');
    if (!isName(san)) throw unauthenticated('names');
    const expireTime = BigInt(new Date(certificate.validTo).getTime()) * 1_000_000n;
    return proofOf({ subject: { san }, name: `san:${san}`, expireTime, fault }, mapping);
  };
}

/** An entry as Node writes it. Values with other characters are in quotes, so that none can look like two. */
const ENTRY = /([A-Za-z ]+):([^",]*)(?:, |$)/gu;

/** Returns the only URI, else the only DNS name. Undefined: there is none, or several. */
function workloadOf(names: string): string | undefined {
  const entries = [...names.matchAll(ENTRY)];
  if (entries.map(([whole]) => whole).join('') !== names) return undefined;
  const ofKind = (wanted: string) => entries.flatMap(([, kind, value = '']) => (kind === wanted ? [value] : []));
  const uris = ofKind('URI');
  const [only, ...others] = uris.length > 0 ? uris : ofKind('DNS').map((host) => host.toLowerCase());
  return others.length === 0 ? only : undefined;
}

/** The connection has to be opened again, because its certificate was verified by authorities of before. */
function replaced(): AnabranchError {
  return new AnabranchError(
    'SERVER_DRAINING',
    'The server trusts other authorities of client certificates than before. Nothing was done. Connect again.',
  );
}
