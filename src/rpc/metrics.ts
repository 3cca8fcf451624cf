import { EVERY_NAMESPACE } from '../domain/access.ts';
import type { Gate } from './gate.ts';
import { SAFE, serveGated } from './gated_request.ts';
import { answer, cutCall, type HttpRequest, type HttpResponse, type Intake, pathOf } from './http.ts';

/** The metrics of the server, as a text. */
export interface MetricsText {
  readonly contentType: string;
  text(): Promise<string>;
}

/**
 * Returns a function that serves `GET /metrics` to credentials for all namespaces, and returns false for other paths.
 * Metrics name no namespace, but count the calls and steps of all.
 */
export function metricsPath(
  gate: Gate,
  metrics: MetricsText,
): (request: HttpRequest, response: HttpResponse, intake: Intake) => boolean {
  return (request, response, intake) => {
    if (pathOf(request) !== '/metrics') return false;
    const send = () => void sendMetrics(metrics, request, response);
    serveGated(gate, { request, response, intake }, send, { namespace: EVERY_NAMESPACE });
    return true;
  };
}

/** Answers GET and HEAD with the metrics. */
export async function sendMetrics(
  { contentType, text }: MetricsText,
  request: HttpRequest,
  response: HttpResponse,
): Promise<void> {
  if (request.method !== 'GET' && request.method !== 'HEAD') {
    answer(response, 405, { allow: 'GET, HEAD', 'content-type': 'text/plain; charset=utf-8' }, 'Use GET.\n');
    return;
  }
  try {
    const body = await text();
    answer(response, 200, { ...SAFE, 'content-type': contentType, 'cache-control': 'no-store' }, body);
  } catch {
    cutCall(request);
  }
}
