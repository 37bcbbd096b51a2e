from tests.support.fixtures import certificates as certificates
