import { Client, credentials } from '@grpc/grpc-js';
import { openRolloutSql } from '../rollout_sql.ts';
import { interceptorsFor, program } from './program.ts';

/**
 * Workers that claim one rollout after the other, from the service or with the driver. Responses are only checked for a
 * claim, so the server is measured.
 */
export interface ClaimsSettings {
  readonly database: string;
  /**
   * Address of the service, and the encoded request as base64. An empty request: calls that do nothing. Undefined: uses
   * the driver.
   */
  readonly service?: { readonly address: string; readonly token?: string | undefined; readonly request: string };
  readonly workers: number;
  /** Claimed rollouts are put back after this many claims. Putting back is not timed. */
  readonly putBackAfter: number;
  readonly warmupSeconds: number;
  readonly seconds: number;
}

export interface ClaimsFigures {
  readonly perSecond: number;
  readonly claims: number;
}

const same = (bytes: Buffer) => bytes;

/** The tag of `ClaimRolloutsResponse.claims`, the first field. */
const CLAIMS = 0x0a;

/** The tag of `HealthCheckResponse.status`. */
const STATUS = 0x08;

await program(async (settings: ClaimsSettings): Promise<ClaimsFigures> => {
  const { database, service, workers, putBackAfter, warmupSeconds, seconds } = settings;
  const queue = await openRolloutSql(database);
  const claimers = await (service === undefined ? byDriver(database, workers) : byService(service, workers));
  /** Returns the seconds that a number of claims took. */
  const burst = async (until: number): Promise<{ claims: number; seconds: number }> => {
    let claims = 0;
    let begun = 0;
    const work = async (claim: () => Promise<boolean>) => {
      while (begun < putBackAfter && performance.now() < until) {
        begun += 1;
        if (!(await claim())) throw new Error('there was nothing to claim');
        claims += 1;
      }
    };
    const start = performance.now();
    await Promise.all(claimers.map(work));
    return { claims, seconds: (performance.now() - start) / 1000 };
  };
  const claimFor = async (forSeconds: number) => {
    const total = { claims: 0, seconds: 0 };
    while (total.seconds < forSeconds) {
      await queue.requeue();
      const done = await burst(performance.now() + (forSeconds - total.seconds) * 1000);
      total.claims += done.claims;
      total.seconds += done.seconds;
    }
    return total;
  };
  if (warmupSeconds > 0) await claimFor(warmupSeconds);
  const { claims, seconds: took } = await claimFor(seconds);
  return { perSecond: claims / took, claims };
});

/** SQLite allows one writer at a time, so its workers share a connection. */
async function byDriver(database: string, workers: number): Promise<(() => Promise<boolean>)[]> {
  const shared = database.startsWith('sqlite:') ? await openRolloutSql(database) : undefined;
  const connections = Array.from({ length: workers }, async () => shared ?? openRolloutSql(database));
  return (await Promise.all(connections)).map((connection) => () => connection.claim());
}

function byService({ address, token, request }: NonNullable<ClaimsSettings['service']>, workers: number) {
  const client = new Client(address, credentials.createInsecure(), { interceptors: interceptorsFor(token) });
  const bytes = Buffer.from(request, 'base64');
  const [method, tag] =
    request === '' ? ['/grpc.health.v1.Health/Check', STATUS] : ['/anabranch.v1.RolloutService/ClaimRollouts', CLAIMS];
  const claim = () =>
    new Promise<boolean>((resolve, reject) => {
      client.makeUnaryRequest(method, same, same, bytes, (error, answer) =>
        error ? reject(error) : resolve(answer?.[0] === tag),
      );
    });
  return Array.from({ length: workers }, () => claim);
}
