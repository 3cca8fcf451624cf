import type { Socket } from 'node:net';
import type { TLSSocket } from 'node:tls';
import type { ClientCertificate } from '../domain/identity.ts';

/** Where a socket has it, so that it costs a call nothing. */
const SHOWN = Symbol('the certificate of the client');

interface Carrier {
  [SHOWN]?: ClientCertificate;
}

/** Notes the certificate that was shown in a handshake that is complete. */
export function noteCertificate(secure: TLSSocket & Carrier, authorities: ClientCertificate['authorities']): void {
  const certificate = secure.getPeerX509Certificate();
  if (certificate !== undefined) secure[SHOWN] = { certificate, fault: faultOf(secure), authorities };
}

/** Returns the certificate that the client of a connection has shown. Sockets of HTTP/2 sessions pass it on. */
export function certificateOf(socket: (Socket & Carrier) | undefined): ClientCertificate | undefined {
  return socket?.[SHOWN];
}

function faultOf(secure: TLSSocket): ClientCertificate['fault'] {
  // A resumed session would repeat what an earlier handshake has proved, possibly to other authorities.
  if (secure.authorized && !secure.isSessionReused()) return undefined;
  return String(secure.authorizationError) === 'CERT_HAS_EXPIRED' ? 'expired' : 'untrusted';
}
