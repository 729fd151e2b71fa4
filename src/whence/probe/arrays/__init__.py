"""What captured arrays say about position: functions of tensors alone; no model is involved."""
