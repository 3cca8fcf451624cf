/** Explains why Postgres cannot be used, with what to do, in one line each. */

/** No host of the URL is a primary that may be used. The message lists why. */
export class NoWritableHost extends Error {}

/**
 * Returns the explanation of an error of `pg`. It contains no password. Undefined if it is not an error of connecting
 * or of rights.
 */
export function explainConnecting(error: unknown): string | undefined {
  if (!(error instanceof Error)) return undefined;
  if (error instanceof NoWritableHost)
    return `No host in the URL of the database accepts writes (${error.message}): promote a standby, or add the primary to the URL.`;
  const { code, severity, syscall } = error as { code?: string; severity?: string; syscall?: string };
  const text = lineOf(error);
  if (severity !== undefined) return explainRefusal(code ?? '', text);
  if (/password must be a (non-empty )?string/i.test(text))
    return 'Postgres asks for a password, and none is set: add it to the URL (USER:PASSWORD@HOST), or set PGPASSWORD.';
  if (/does not support SSL/i.test(text))
    return `Postgres does not offer TLS (${text}): turn it on there (ssl = on), or remove sslmode from the URL.`;
  if (code === 'ENOTFOUND' || code === 'EAI_AGAIN' || code === 'EAI_NODATA')
    return `The host of Postgres has no address (${text}): correct the host in the URL, or the name service of this machine.`;
  if (code !== undefined && TLS_FAULT.test(code))
    return `The TLS connection to Postgres failed (${text}): name the certificate of its authority in the URL (sslrootcert=FILE), or do not check it (sslmode=no-verify).`;
  if (syscall === 'open' || (syscall === 'read' && code !== 'ECONNRESET'))
    return `A file that the URL of Postgres names cannot be read (${text}): correct sslrootcert, sslcert or sslkey.`;
  return isOutOfReach(error, code)
    ? `The database does not respond (${text}): check that Postgres is running and that the URL is correct.`
    : undefined;
}

const TLS_FAULT =
  /^(ERR_TLS|ERR_SSL|ERR_OSSL|EPROTO|DEPTH_ZERO|SELF_SIGNED|UNABLE_TO|CERT_|HOSTNAME_MISMATCH|INVALID_CA)/;

function isOutOfReach(error: Error, code: string | undefined): boolean {
  return code !== undefined || /connection|silent|timeout|SASL|SSL/i.test(error.message);
}

/** Explains what Postgres itself answers. SQLSTATEs: appendix A of its manual. */
function explainRefusal(code: string, text: string): string | undefined {
  const remedy = REMEDIES[code] ?? REMEDIES[code.slice(0, 2)];
  return remedy === undefined ? undefined : `Postgres refuses (${text}): ${remedy}.`;
}

/** By SQLSTATE or its class. */
const REMEDIES: Readonly<Record<string, string>> = {
  '28P01': 'correct the user and the password; in a URL, both are percent-encoded (@ as %40)',
  '28': 'create the role with LOGIN, and allow it in pg_hba.conf from this machine; an entry hostssl needs ?sslmode=verify-full in the URL (no-verify: with any certificate)',
  '3D000': 'create the database (createdb NAME), or correct its name',
  '42501':
    'let the owner of the database run: grant connect, create on database NAME to ROLE. An existing schema anabranch must belong to the role',
  '53300':
    'end other sessions, lower --pool-size, or raise max_connections or the connection limit of the role or the database',
  '55000': 'name another database',
  '57P03': 'start again when Postgres accepts connections',
  '57': 'check that Postgres is running, and start again',
  '08': 'check the user, the database and the pooler, which must not be in statement mode (pool_mode)',
  '22023': 'correct the options in the URL',
  '42704': 'correct the options in the URL',
};

/** Returns the message of an error in one line. Node reports several failed addresses without a message. */
export function lineOf(error: unknown): string {
  const causes = error instanceof AggregateError ? error.errors.map(lineOf).join('; ') : '';
  const text = causes || (error instanceof Error ? error.message : String(error));
  return text.replaceAll(/\s+/g, ' ').trim();
}
