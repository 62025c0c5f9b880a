"""Ten programs of samplers, solvers and searches, of networks that halt when they are sure, and of trees and charts."""
