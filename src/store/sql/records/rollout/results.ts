import type { RolloutResult } from '../../../../domain/rollout.ts';

/**
 * Encodes a result for its column: JSON text without the summary, which has its own column. NaN and infinities are
 * strings, because JSON has no numbers for them.
 */
export function bindResult(result: RolloutResult | undefined): string {
  if (result === undefined) return '';
  const { reward, taskCompleted, agentReportedSuccess, success, errors } = result;
  return JSON.stringify({
    ...(reward === undefined ? {} : { reward: bindNumber(reward) }),
    ...(taskCompleted === undefined ? {} : { taskCompleted }),
    ...(agentReportedSuccess === undefined ? {} : { agentReportedSuccess }),
    ...(success === undefined ? {} : { success }),
    ...(errors.length === 0 ? {} : { errors }),
  });
}

export function readResult(text: string, summaryJson: string): RolloutResult | undefined {
  if (text === '') return undefined;
  const { reward, taskCompleted, agentReportedSuccess, success, errors } = JSON.parse(text) as StoredResult;
  return {
    reward: reward === undefined ? undefined : Number(reward),
    taskCompleted,
    agentReportedSuccess,
    success,
    errors: errors ?? [],
    summaryJson,
  };
}

interface StoredResult {
  readonly reward?: number | string;
  readonly taskCompleted?: boolean;
  readonly agentReportedSuccess?: boolean;
  readonly success?: boolean;
  readonly errors?: readonly string[];
}

function bindNumber(value: number): number | string {
  if (Object.is(value, -0)) return '-0';
  return Number.isFinite(value) ? value : String(value);
}
