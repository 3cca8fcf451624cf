import { useState } from 'preact/hooks';
import { usePage } from '../context.ts';
import { OperationDialog } from './dialog.tsx';
import type { Operation } from './operation.ts';
import './operations.css';

interface OperationsProps {
  readonly of: readonly Operation[];
  /** Called after an operation. Views that are live need it not. */
  readonly onDone?: () => void;
}

/** Buttons of the operations that the caller may do. */
export function Operations({ of, onDone }: OperationsProps) {
  const { role } = usePage();
  // The operation stays as it was chosen, even if the resource changes meanwhile: the server decides.
  const [chosen, setChosen] = useState<Operation>();
  const allowed = of.filter(({ needs }) => role >= needs);
  if (allowed.length === 0) return null;
  return (
    <div class="operations">
      {allowed.map((each) => (
        <button key={each.title} type="button" onClick={() => setChosen(each)}>
          {each.title}
        </button>
      ))}
      {chosen !== undefined && (
        <OperationDialog
          key={chosen.title}
          operation={chosen}
          onDone={() => onDone?.()}
          onClose={() => setChosen(undefined)}
        />
      )}
    </div>
  );
}
