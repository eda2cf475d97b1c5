"""The paper, measured: one module for each table and figure (`fedcal paper`)."""
