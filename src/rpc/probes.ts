import type { Health } from './health.ts';
import { answer, type HttpRequest, type HttpResponse, pathOf } from './http.ts';

/** What the probes of orchestrators and load balancers ask for. They need no credential. */
interface Probed {
  readonly health: Pick<Health, 'serving'>;
  /** Whether the database answers and has the schema of this program. */
  readonly isStoreReady: () => Promise<boolean>;
}

/** `undefined`: the answer is `ok`. */
type Fault = string | undefined;

const DRAINING = 'draining';

const PROBES: Readonly<Record<string, (probed: Probed) => Fault | Promise<Fault>>> = {
  '/livez': () => undefined,
  '/readyz': async ({ health, isStoreReady }) => {
    if (!health.serving) return DRAINING;
    return (await isStoreReady()) ? undefined : 'the database does not answer, or its schema is of another version';
  },
  '/healthz': isServing,
  '/health': isServing,
};

function isServing({ health }: Probed): Fault {
  return health.serving ? undefined : DRAINING;
}

export function isProbe(request: { readonly url?: string | undefined }): boolean {
  return Object.hasOwn(PROBES, pathOf(request));
}

const PLAIN = { 'content-type': 'text/plain; charset=utf-8', 'cache-control': 'no-store' };

/** Answers a probe. */
export async function answerProbe(probed: Probed, request: HttpRequest, response: HttpResponse): Promise<void> {
  if (request.method !== 'GET' && request.method !== 'HEAD') {
    answer(response, 405, { ...PLAIN, allow: 'GET, HEAD' }, 'Use GET.\n');
    return;
  }
  const fault = await PROBES[pathOf(request)]?.(probed);
  answer(response, fault === undefined ? 200 : 503, PLAIN, fault ?? 'ok');
}
